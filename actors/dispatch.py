"""Who gets what: matches waiting deliveries with credit, and sends.

A turn of ``pump`` serves the lanes that were fed and the receivers that came by credit, one
delivery at a time, so that receivers take turns. It ends when nobody who has credit is owed
anything that may go now.
"""

from itertools import repeat

from asterism import limits
from asterism.actors.delivery import LOG_KIND, MEMORY_KIND, POOL_KIND, Delivery, Message
from asterism.actors.endings import EXPIRED, FAILED, OK, status_name
from asterism.actors.ordering import Ordering
from asterism.actors.pool import Lane
from asterism.actors.receivers import Endpoint, Receiver
from asterism.actors.runs import Run
from asterism.commands import Incoming
from asterism.effects import Deliver, Reply
from asterism.message import Status
from asterism.storage.keys import FIRST_RANK, POOL, RANK_END, WORK, rank_of
from asterism.storage.records import decode_exception

_SENT = Status.SENT  # a member of an enumeration is slow to look up


class Dispatch(Ordering):
    """Sends waiting deliveries to receivers with credit."""

    def pump(self, now_ms: int) -> None:
        """Serves everybody who can be served."""
        if self.box.value.blocking:
            self.pump_blocking(now_ms)
        else:
            if self.stalled and not self.is_full():
                self.hungry = self.stalled | self.hungry
                self.stalled = {}
            if self.fed_epoch != self.receivers.epoch:
                self.feed_anew()
            # Ending a message may feed other lanes and wake other receivers: until nothing is left.
            while self.fed or self.hungry:
                if self.is_full():
                    self.stalled |= self.hungry
                    self.hungry = {}
                    break
                if self.fed:
                    self.pump_lane(next(iter(self.fed)), now_ms)
                else:
                    self.pump_receiver(next(iter(self.hungry)), now_ms)
        self.flush_deliveries(now_ms)

    def feed_anew(self) -> None:
        """Audiences changed: what was fed may wait in another lane by now, or on disk alone."""
        self.fed_epoch = self.receivers.epoch
        self.fed = self.pool.lanes_in_use()
        if self.pool.frontier != RANK_END:
            for receiver in self.receivers.by_number.values():
                if receiver.credit:
                    self.hungry[receiver] = None

    def is_full(self) -> bool:
        """May nothing more go out, for now or until something comes back?"""
        if self.handed_bytes >= limits.HANDED_BYTES_MAX:
            return True
        limit = self.box.value.concurrency
        return limit is not None and self.pages.out >= limit

    def pump_lane(self, lane: Lane, now_ms: int) -> None:
        pool = self.pool
        while (head := lane.head(pool.frontier)) is not None or lane.runs:
            if self.is_full():
                return  # it stays fed
            if head is None:
                if not self.pump_runs(lane, now_ms):
                    break
                continue
            receiver = lane.next_ready(head.holder)
            if receiver is None:
                break
            # Where nothing else can come before it, the lane's head need not be chosen.
            if len(receiver.lanes) == 1 and not receiver.has_own() and head.is_plain(now_ms):
                lane.take(head)
                self.send(head, receiver, now_ms)
            elif not self.serve(receiver, now_ms):
                self.stalled |= lane.ready
                break
        if head is None and not lane.runs and pool.goes_on(lane):
            # What comes next in this lane is on disk alone: whoever has credit must read on.
            self.hungry |= lane.ready
        self.fed.pop(lane, None)

    def pump_receiver(self, receiver: Receiver, now_ms: int) -> None:
        if receiver.kept and self.may_send_kept(receiver):
            self.send_kept(receiver)
        if len(receiver.lanes) == 1 and not receiver.has_own():
            (lane,) = receiver.lanes
            self.pump_only_lane(lane, receiver, now_ms)
        while receiver.credit > 0 and not self.is_full():
            if not self.serve(receiver, now_ms):
                break
        if self.is_full():
            self.stalled[receiver] = None
        del self.hungry[receiver]

    def pump_only_lane(self, lane: Lane, receiver: Receiver, now_ms: int) -> None:
        """What a receiver of one lane gets while nothing has to be chosen."""
        pool = self.pool
        while receiver.credit > 0 and not self.is_full():
            head = lane.head(pool.frontier)
            if head is None and (lane.runs or pool.refill_runs(lane)):
                if self.may_send_run(lane, receiver, now_ms):
                    self.send_run(lane, receiver, now_ms)
                else:
                    pool.unroll(lane)
                continue
            if head is None or not head.is_plain(now_ms):
                return
            lane.take(head)
            self.send(head, receiver, now_ms)

    # --- runs -------------------------------------------------------------------------------

    def unroll_all(self) -> None:
        """Gives everything that is in runs its objects."""
        self.pool.unroll_all()
        self.unroll_copies()

    def pump_runs(self, lane: Lane, now_ms: int) -> bool:
        """Sends what a lane has in runs; was anything done, so that it may be looked at again?"""
        for receiver in lane.ready:
            if not self.may_send_run(lane, receiver, now_ms):
                self.pool.unroll(lane)
                return True
        ready = lane.next_ready()
        if ready is None:
            return False
        self.send_run(lane, ready, now_ms)
        return True

    def may_send_run(self, lane: Lane, receiver: Receiver, now_ms: int) -> bool:
        """Can nothing else come before this lane's first run, for this receiver?"""
        settings = self.box.value
        return (
            len(receiver.lanes) == 1
            and receiver.number != WORK
            and not receiver.has_own()
            and lane.runs[0].expires_ms > now_ms
            and settings.concurrency is None
            and not settings.blocking
        )

    def send_run(self, lane: Lane, receiver: Receiver, now_ms: int) -> None:
        """Sends the front of a lane's first run to the endpoint whose turn it is."""
        run, pool = lane.runs[0], self.pool
        endpoint = next(iter(receiver.ready))
        left = len(run.messages) - run.taken
        count = left if left <= endpoint.credit else endpoint.credit
        sharing = len(receiver.ready) * (len(lane.ready) or 1)
        if sharing > 1:  # by turns, a few at a time: nobody waits for what another has in hand
            count = min(count, max(left // (8 * sharing), 1))
        first, messages = run.first, lane.runs.take(count)
        receiver.spend(endpoint, count)
        sequences = range(first, first + count)
        self.hand(endpoint, sequences, messages)
        if run.in_memory:
            pool.pushed_count -= count
            assert run.subjects is not None, "push messages of a run share a header"
            self.push_tally.take(run.subjects, count)
            self.totals["processed"] += count
            self.count_passed(endpoint, count)
            return
        page = self.pages.add_run(receiver, endpoint, run, first, messages, now_ms)
        for sequence in sequences:
            pool.plain[sequence] = page
        pull = endpoint.pull
        if pull is not None and pull.remaining > 0:
            # What a pull takes gives no credit back, which each must remember for itself.
            pool.unroll_all()
            for sequence in sequences[: pull.remaining]:
                receiver.held[sequence].returns_credit = False
            pull.remaining -= min(pull.remaining, count)

    # --- online copies, by the run ------------------------------------------------------------

    def waits_for_nothing(self, receiver: Receiver) -> bool:
        """Is there nothing that this receiver is owed and has not been sent?"""
        return not receiver.has_own() and self.lanes_are_empty(receiver)

    def lanes_are_empty(self, receiver: Receiver) -> bool:
        """Does nothing of the pool wait for it?"""
        return self.pool.frontier == RANK_END and all(
            lane.spill is None and not lane.runs and not lane.window and not lane.memory
            for lane in receiver.lanes
        )

    def may_send_kept(self, receiver: Receiver) -> bool:
        """Can nothing else come before the online copies that it has in runs?"""
        window, settings = receiver.window, self.box.value
        return (
            not receiver.copies_count
            and not window.ordered
            and not window.early
            and receiver.horizon == RANK_END
            and self.lanes_are_empty(receiver)
            and settings.concurrency is None
            and settings.history == "none"
        )

    def send_kept(self, receiver: Receiver) -> None:
        """Sends online copies as far as there is credit."""
        kept = receiver.kept
        while kept and receiver.credit and not self.is_full():
            run = kept[0]
            first, count = run.first, min(len(run), receiver.credit)
            self.pass_to(receiver, range(first, first + count), run.take(count))
            receiver.kept_count -= count
            if not run:
                self.let_go(kept.popleft())
        if not kept:
            del self.keepers[receiver]

    def let_go(self, run: Run) -> None:
        """A receiver is through with a run; its messages are over with the last who kept them."""
        begin = run.first - run.taken
        self.kept[begin] -= 1
        if not self.kept[begin]:
            del self.kept[begin]
            self.kept_messages -= len(run.messages)

    def keep(self, receiver: Receiver, run: Run, now_ms: int) -> None:
        """Online copies wait for a receiver that has no credit; if they are too many, its oldest
        are dropped."""
        kept, begin = receiver.kept, run.first - run.taken
        if begin not in self.kept:
            self.kept_messages += len(run.messages)
        self.kept[begin] = self.kept.get(begin, 0) + 1
        kept.append(run)
        self.keepers[receiver] = None
        receiver.kept_count += len(run)
        while (excess := len(receiver.copies) + receiver.kept_count - limits.ONLINE_COPIES_MAX) > 0:
            oldest = receiver.copies.head()
            if oldest is not None:
                receiver.copies.pop()
                self.end_copy(oldest, Status.UNREACHABLE, now_ms)
                continue
            dropped = min(excess, len(kept[0]))
            kept[0].skip(dropped)
            receiver.kept_count -= dropped
            if not kept[0]:
                self.let_go(kept.popleft())

    def pass_to(self, receiver: Receiver, sequences: range, messages: tuple[Incoming, ...]) -> None:
        """Sends to the endpoints of a receiver that has the credit; it is done by that."""
        begin, count = 0, len(messages)
        while begin < count:
            endpoint = next(iter(receiver.ready))
            sharing = len(receiver.ready)
            share = count - begin if sharing == 1 else max((count - begin) // (8 * sharing), 1)
            until = begin + min(share, endpoint.credit, count - begin)
            self.hand(endpoint, sequences[begin:until], messages[begin:until])
            self.count_passed(endpoint, until - begin)
            receiver.spend(endpoint, until - begin)
            begin = until
        self.totals["processed"] += count

    def hand(self, endpoint: Endpoint, sequences: range, messages: tuple[Incoming, ...]) -> None:
        """What these messages are to an endpoint that is sent them for the first time."""
        if not endpoint.outgoing:
            self.touched.append(endpoint)
        assert len(sequences) == len(messages)
        ids, headers, payloads = zip(*messages, strict=True)
        endpoint.outgoing.extend(zip(sequences, repeat(1), ids, headers, payloads))
        self.handed_bytes += sum(map(len, payloads))

    def count_passed(self, endpoint: Endpoint, count: int) -> None:
        """So many were sent that are done by it, and come back by a grant; not those of a pull."""
        if endpoint.pull is not None:
            pulled = min(endpoint.pull.remaining, count)
            endpoint.pull.remaining -= pulled
            count -= pulled
        endpoint.passed += count

    # --- choosing ---------------------------------------------------------------------------

    def serve(self, receiver: Receiver, now_ms: int) -> bool:
        """Sends a receiver the best that it is owed; False if that is nothing."""
        while True:
            best = self.pool.best_for(receiver)
            lane, delivery = (None, None) if best is None else best
            if receiver.has_own():
                own = self.own_head(receiver)
                if own is not None and (delivery is None or own.rank < delivery.rank):
                    lane, delivery = None, own
            if delivery is None:
                if self.pool.unfinished or self.log.unfinished:
                    self.stalled[receiver] = None
                return False
            if self.take(delivery, lane, receiver, now_ms):
                self.send(delivery, receiver, now_ms)
                return True
            if delivery.waits and not self.was_set_aside(delivery, lane, receiver):
                self.stalled[receiver] = None
                return False

    def own_head(self, receiver: Receiver) -> Delivery | None:
        """The best of what is this receiver's alone: the log, and online copies."""
        if receiver.number == WORK:
            return None
        if receiver.kept:
            self.unroll_copies()
        logged = self.log.head(receiver)
        copied = receiver.copies.head()
        if logged is None or (copied is not None and copied.rank < logged.rank):
            # What is not in memory of the log comes first if its rank is lower.
            return copied if copied is not None and copied.rank < receiver.horizon else None
        return logged

    def take(self, delivery: Delivery, lane: Lane | None, receiver: Receiver, now_ms: int) -> bool:
        """Takes a head off its window; False if it may not go now: it is over, or set aside."""
        message = delivery.message
        key = message.header.ordering_key
        if key is not None and not self.is_its_turn(delivery, key, lane, receiver):
            return False
        if message.expires_ms <= now_ms and message.kind != MEMORY_KIND:
            self.take_off(delivery, lane, receiver)
            self.expire_waiting(delivery, now_ms)
            return False
        self.take_off(delivery, lane, receiver)
        # Also one that is given up takes a place, and waits for it.
        if message.kind == LOG_KIND and not self.take_place_out(delivery, receiver):
            return False
        most = self.settings.max_deliveries
        if most is not None and delivery.tries >= most:
            # Its last delivery was lost in a restart, or the bound was lowered since.
            delivery.receiver = self.receivers.by_number.get(delivery.holder, receiver)
            self.give_up(delivery, now_ms)
            return False
        return True

    def was_set_aside(self, delivery: Delivery, lane: Lane | None, receiver: Receiver) -> bool:
        """After ``take`` said no: is it off its window, so that the next may be looked at?"""
        if lane is not None:
            return lane.head(self.pool.frontier) is not delivery
        return self.own_head(receiver) is not delivery

    def take_place_out(self, delivery: Delivery, receiver: Receiver) -> bool:
        """One of the places of a message with ``max_receivers``, if one is free."""
        message = delivery.message
        wanted = message.header.max_receivers
        if wanted is None:
            return True
        places = self.places_of(message)
        if not places.has_room_for(receiver.number, wanted):
            places.held_back[receiver.number] = delivery
            if places.parked:
                # A place may never fall free: it does not hold up the others of its key.
                self.release_receiver_key(delivery, receiver)
            return False
        places.out.add(receiver.number)
        return True

    def expire_waiting(self, delivery: Delivery, now_ms: int) -> None:
        """A message whose time is over came to the head before the walk of time reached it."""
        if delivery.message.kind == LOG_KIND:
            self.expire_log(delivery.message, now_ms)
        else:
            self.expire_pool(delivery, now_ms)

    def expire_pool(self, delivery: Delivery, now_ms: int) -> None:
        if delivery.page is not None:
            self.release(delivery)
        self.totals["expired"] += 1
        self.end_pool(delivery, EXPIRED, {}, now_ms)

    def expire_log(self, message: Message, now_ms: int) -> None:
        self.totals["expired"] += 1
        verdict = self.verdict_at_expiry(message)
        if self.has_parked(message.sequence) and self.stays_for_parked(message):
            self.keep_for_parked(message, verdict, now_ms)
        else:
            self.end_log(message, verdict, now_ms)

    def verdict_at_expiry(self, message: Message) -> str:
        if not self.is_tracked(message) and not self.parked:
            return EXPIRED
        fared = [fared.status for fared in self.fared_of(message.sequence)]
        failed, waiting = status_name(Status.FAILED), status_name(Status.WAITING)
        done = any(status not in (failed, waiting) for status in fared)
        if done and message.header.max_receivers is None:
            return OK
        return FAILED if failed in fared else EXPIRED

    # --- sending ----------------------------------------------------------------------------

    def send(self, delivery: Delivery, receiver: Receiver, now_ms: int) -> None:
        """A delivery goes out to a receiver that has credit for it."""
        message = delivery.message
        header = message.header
        delivery.waits = False
        delivery.attempts += 1
        delivery.receiver = receiver
        delivery.holder = number = receiver.number
        delivery.sent_ms = now_ms
        delivery.received_ms = 0
        delivery.status = _SENT
        if message.sequence == self.current:
            self.current_sent = True
            self.under_way = message.sequence
            self.head_dirty = True
        if number == WORK:
            self.send_order(delivery, receiver, now_ms)
            return
        endpoint = receiver.next_endpoint()
        payload = self.payload_of(message) if message.payload is None else message.payload
        if not endpoint.outgoing:
            self.touched.append(endpoint)
        self.handed_bytes += len(payload)
        endpoint.outgoing.append(
            (message.sequence, delivery.attempts, message.id, header.encoded, payload)
        )
        if endpoint.pull is not None and endpoint.pull.remaining > 0:
            endpoint.pull.remaining -= 1
            delivery.returns_credit = False
        elif delivery.attempts > 1:
            delivery.returns_credit = True  # a pull may have had it before
        endpoint.passed += header.expect is _SENT and delivery.returns_credit
        if len(payload) > limits.WINDOW_RECORD_BYTES_MAX:
            self.load(endpoint, delivery, len(payload))
        if header.expect is _SENT:
            self.done(delivery, _SENT, now_ms)
        else:
            delivery.endpoint = endpoint
            receiver.held[delivery.sequence] = delivery
            self.pages.add(delivery, receiver, endpoint, now_ms)

    def send_order(self, delivery: Delivery, receiver: Receiver, now_ms: int) -> None:
        """Answers the order that has waited longest. An order hands out no payload, so it counts
        as done only when it is completed, whatever the publisher expected."""
        key = next(iter(receiver.orders))
        order = receiver.orders.pop(key)
        order.over = True
        receiver.credit -= 1
        receiver.held[delivery.sequence] = delivery
        self.pages.add(delivery, receiver, None, now_ms)
        self.effects.append(Reply(order.node, order.request, {"sequence": delivery.sequence}))

    def done(self, delivery: Delivery, status: Status, now_ms: int) -> None:
        """A delivery reached its expectation; it is not out any more."""
        message, receiver = delivery.message, delivery.receiver
        assert receiver is not None
        delivery.status = status
        self.totals["processed"] += 1
        if message.copies is None:
            self.completed += message.kind == POOL_KIND
            statuses = {receiver.name: status_name(status)} if message.producer is not None else {}
            self.end_pool(delivery, OK, statuses, now_ms)
        elif message.kind == LOG_KIND:
            self.end_log_delivery(delivery, status, now_ms)
            self.review_only_parked(message, now_ms)
        else:
            self.end_copy(delivery, status, now_ms)

    def flush_deliveries(self, now_ms: int) -> None:
        """Turns what was sent in this command into effects, ahead of its answers."""
        self.pages.close_open()
        if not self.touched:
            return
        deliveries = []
        for endpoint in self.touched:
            out, endpoint.outgoing = endpoint.outgoing, []
            self.totals["delivered"] += len(out)
            deliveries.append(Deliver(endpoint.node, endpoint.number, endpoint.receiver.name, out))
            if endpoint.pull is not None:
                endpoint.pull.taken += len(out)
                self.end_pull(endpoint)
        self.touched.clear()
        self.effects[:0] = deliveries

    def end_pull(self, endpoint: Endpoint) -> None:
        """A pull is answered with what it got; credit that it did not use goes back."""
        pull = endpoint.pull
        assert pull is not None
        endpoint.receiver.revoke(endpoint, pull.remaining)
        endpoint.pull = None
        pull.over = True
        self.effects.append(Reply(pull.node, pull.request, {"count": pull.taken}))

    # --- a blocking topic -------------------------------------------------------------------

    def pump_blocking(self, now_ms: int) -> None:
        """One message at a time, whoever it is for, in order of rank."""
        self.fed.clear()
        self.hungry.clear()
        self.stalled.clear()
        if self.current is not None and not self.current_sent:
            self.resolved_current(self.current)
        while True:
            if self.current is None and not self.choose_current(now_ms):
                return
            self.send_current(now_ms)
            if self.current is not None:
                return

    def choose_current(self, now_ms: int) -> bool:
        """The message of least rank becomes the one under way."""
        # What was out before the topic was blocking, or ordered before a restart, is under way too.
        if self.pages.out:
            return False
        while (best := self.first_of_all()) is not None:
            message = best.message
            is_its_turn = self.may_be_chosen(best)
            if is_its_turn is None:
                return False
            if not is_its_turn:
                continue
            if message.kind == MEMORY_KIND or message.expires_ms > now_ms:
                self.current = message.sequence
                self.current_sent = False
                self.current_for = set(message.copies or ())
                return True
            self.expire_waiting(best, now_ms)
        return False

    def first_of_all(self) -> Delivery | None:
        """The delivery of least rank, whoever it is for."""
        best = self.pool.first()
        for receiver in list(self.receivers.by_number.values()):
            own = self.own_head(receiver)
            if own is not None and (best is None or own.rank < best.rank):
                best = own
        return best

    def send_current(self, now_ms: int) -> bool:
        """Sends the message under way to those who may have it; did anything happen?"""
        sequence = self.current
        assert sequence is not None
        delivery = self.pool.live.get(sequence)
        if delivery is not None:
            return delivery.waits and self.send_current_of_pool(delivery, now_ms)
        if self.rows.get(self.keys.pool(sequence)) is not None:
            self.put_current_first(sequence)
            return True
        sent = False
        for number in self.current_receivers(sequence):
            receiver = self.receivers.by_number.get(number)
            if receiver is not None and receiver.credit > 0 and not self.is_full():
                if self.current_sent and sequence not in receiver.known:
                    self.read_current(receiver, sequence)
                own = self.own_current(receiver, sequence)
                sent |= own is not None and self.serve_own(own, receiver, now_ms)
        return sent

    def read_current(self, receiver: Receiver, sequence: int) -> None:
        """Fetches the log message under way for a receiver that has it on disk alone, if it has."""
        message = self.log_message(sequence)
        if message is not None and self.log.is_owed(receiver, sequence):
            self.put_first_in_log(receiver, message)

    def put_current_first(self, sequence: int) -> None:
        """The message under way went from memory to disk: it is found again, ahead of all."""
        self.current = None
        delivery = self.pool_delivery(sequence)
        if delivery is not None and self.current_sent:
            attempts, holder = self.returned(POOL, sequence)
            delivery.attempts = max(delivery.attempts, attempts)
            delivery.holder = holder or delivery.holder
            self.wait_in_pool(delivery, FIRST_RANK)

    def put_first_in_log(self, receiver: Receiver, message: Message) -> None:
        """The same for one receiver of a log message, which waits for it on disk alone."""
        attempts, holder = self.returned(receiver.number, message.sequence)
        rank = rank_of(message.header.priority, message.sequence)
        delivery = Delivery(message, rank, attempts)
        delivery.holder = holder
        delivery.receiver = receiver
        exception = self.rows.get(self.keys.exception(receiver.number, message.sequence))
        if exception is not None:
            _, delivery.rank, counted, delivery.spent = decode_exception(exception)
            delivery.attempts = max(attempts, counted)
            delivery.placed = True
        self.wait_in_log(delivery, receiver, FIRST_RANK)

    def send_current_of_pool(self, delivery: Delivery, now_ms: int) -> bool:
        lane = self.pool.lane_of(delivery.message.header, delivery.message.kind == MEMORY_KIND)
        # By now others may come before it, but the one under way goes first.
        if self.is_full() or not lane.window_of(delivery).holds(delivery):
            return False
        receiver = lane.next_ready(delivery.holder)
        if receiver is None or not self.take(delivery, lane, receiver, now_ms):
            return False
        self.send(delivery, receiver, now_ms)
        return True

    def current_receivers(self, sequence: int) -> list[int]:
        """Who may have the message under way; with ``max_receivers``, also who came meanwhile."""
        logged = self.log_message(sequence)
        if logged is None:
            return list(self.current_for)
        if logged.header.max_receivers is None:
            for number in list(self.current_for):
                if not self.waits_for_current(self.receivers.by_number[number], logged):
                    self.current_done_by(logged, number)
            return list(self.current_for)
        # Also who has it already, or renewed, though its interests have changed meanwhile.
        having = {*self.current_for, *(logged.copies or ()), *self.renewed_by(sequence)}
        audience = self.receivers.audience(logged.header.subjects)
        return [number for number in audience | having if number != WORK]

    def waits_for_current(self, receiver: Receiver, message: Message) -> bool:
        """Has it the message under way, or will it? Its interests may have changed meanwhile."""
        return message.sequence in receiver.known or self.is_interested(receiver, message)

    def current_left_by(self, receiver: Receiver) -> None:
        """A receiver ends or is moved: the message under way does not wait for it any more."""
        if self.current is not None and receiver.number in self.current_for:
            message = self.log_message(self.current)
            if message is not None:
                self.current_done_by(message, receiver.number)

    def own_current(self, receiver: Receiver, sequence: int) -> Delivery | None:
        """A receiver's delivery of the message under way, if it waits in its window."""
        self.own_head(receiver)  # reads on where its window is empty
        message = self.memory.get(sequence) or self.log.messages.get(sequence)
        own = None if message is None else (message.copies or {}).get(receiver.number)
        if own is None or not own.waits:
            return None
        window = receiver.copies if own.message.kind == MEMORY_KIND else receiver.window
        return own if window.holds(own) else None

    def serve_own(self, delivery: Delivery, receiver: Receiver, now_ms: int) -> bool:
        if self.take(delivery, None, receiver, now_ms):
            self.send(delivery, receiver, now_ms)
            return True
        return False
