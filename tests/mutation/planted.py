"""The planted bugs: what is promised, and the smallest change to the core that breaks it.

``before`` stands exactly once in its file; a test checks that, so that a bug is not lost when the
code around it changes. ``tests`` are those that are run against it, the quickest first.
"""

from typing import NamedTuple

LADDER = "tests/unit/test_ladder.py"
MESSAGES = "tests/unit/test_messages.py"
RECEIPTS = "tests/unit/test_receipts.py"
TOPICS = "tests/unit/test_topics.py"
RECEIVERS = "tests/unit/test_receivers.py"
WORK = "tests/unit/test_work_queue.py"
INTEREST = "tests/unit/test_interest.py"
STORE = "tests/unit/test_store.py"
BYTES = "tests/unit/test_bytes.py"
DAMAGE = "tests/fault/test_store_damage.py"


class Planted(NamedTuple):
    """One planted bug."""

    promise: str
    file: str
    before: str
    after: str
    tests: str


PLANTED: tuple[Planted, ...] = (
    Planted(
        "what comes back from disk has the receipts of its own numbers",
        "actors/pool.py",
        "        return producer, number - number_at_end(entry[0])\n",
        "        return producer, 0\n",
        RECEIPTS,
    ),
    Planted(
        "each message of a run has the receipt of its own number",
        "actors/leases.py",
        "        page.told_first = run.number - (run.first - first)\n",
        "        page.told_first = run.number\n",
        RECEIPTS,
    ),
    Planted(
        "a run that is sent in parts keeps its numbers",
        "actors/runs.py",
        "        self.number += count\n",
        "",
        RECEIPTS,
    ),
    Planted(
        "the parts of a batch in several runs keep their numbers",
        "actors/publishing.py",
        "False, producer, number + at)",
        "False, producer, number)",
        RECEIPTS,
    ),
    Planted(
        "a publisher who asked is told how a message of a run ended",
        "actors/endings.py",
        "        if told:\n",
        "        if False:\n",
        RECEIPTS,
    ),
    Planted(
        "those who wait in a run and asked for receipts are remembered one by one",
        "actors/pool.py",
        "                if run.producer is not None:\n",
        "                if False:\n",
        RECEIPTS,
    ),
    Planted(
        "those who are out of a run and asked for receipts are remembered one by one",
        "actors/pool.py",
        "            if page.producer is not None:\n",
        "            if False:\n",
        RECEIPTS,
    ),
    Planted(
        "who asked for a receipt of a message in a run is known after a restart",
        "actors/publishing.py",
        "headers, payloads, producer, number)\n",
        "headers, payloads)\n",
        RECEIPTS,
    ),
    Planted(
        "messages of a run whose publisher asked are counted until they end",
        "actors/endings.py",
        "            self.asked -= len(told)\n",
        "            pass\n",
        RECEIPTS,
    ),
    Planted(
        "a large delivery that is over gives its bytes back",
        "actors/endings.py",
        "            self.lighten(endpoint, delivery.size)\n",
        "            pass\n",
        BYTES,
    ),
    Planted(
        "a large delivery counts until it is over",
        "actors/endings.py",
        "            delivery.size = size\n",
        "            delivery.size = 0\n",
        BYTES,
    ),
    Planted(
        "a large delivery that is done once it is sent counts until a grant",
        "actors/endings.py",
        "            endpoint.unpaid.append((endpoint.passed, size))\n",
        "            return\n",
        BYTES,
    ),
    Planted(
        "a grant pays for the large ones that were sent first",
        "actors/subscribing.py",
        "        while endpoint.unpaid and endpoint.unpaid[0][0] <= endpoint.paid:\n",
        "        while endpoint.unpaid:\n",
        BYTES,
    ),
    Planted(
        "credit that was granted ahead pays for nothing",
        "actors/subscribing.py",
        "min(endpoint.paid + command.credit, endpoint.passed)",
        "endpoint.paid + command.credit",
        BYTES,
    ),
    Planted(
        "small ones that are done once they are sent are paid for too",
        "actors/dispatch.py",
        "        endpoint.passed += count\n",
        "        endpoint.passed += 0\n",
        BYTES,
    ),
    Planted(
        "credit that comes for an endpoint that is laden does not count yet",
        "actors/endings.py",
        "                receiver.withhold(endpoint, amount)\n                return\n",
        "                receiver.withhold(endpoint, amount)\n",
        BYTES,
    ),
    Planted(
        "withheld credit comes back with the bytes",
        "actors/endings.py",
        "            credit, endpoint.withheld = endpoint.withheld, 0\n            self.credit(endpoint, credit)\n",
        "            endpoint.withheld = 0\n",
        BYTES,
    ),
    Planted(
        "a pull takes its withheld credit with it",
        "actors/receivers.py",
        "        endpoint.withheld -= min(credit - counting, endpoint.withheld)\n",
        "",
        BYTES,
    ),
    Planted(
        "a command sends no more bytes than it may",
        "actors/dispatch.py",
        "            return True\n        limit",
        "            pass\n        limit",
        BYTES,
    ),
    Planted(
        "the next turn sends what one command may not",
        "actors/topic.py",
        " or self.has_handed_enough else None",
        " else None",
        BYTES,
    ),
    Planted(
        "a run that was sent counts for what a command may send",
        "actors/dispatch.py",
        "        self.handed_bytes += sum(map(len, payloads))\n",
        "",
        BYTES,
    ),
    Planted(
        "a turn ends when its topics have sent enough",
        "actors/shard.py",
        " and not self.has_handed_enough:\n",
        ":\n",
        BYTES,
    ),
    Planted(
        "a topic has so many bytes of push messages",
        "actors/publishing.py",
        " or (is_large and not self.has_memory_for(size, now_ms)):",
        ":",
        BYTES,
    ),
    Planted(
        "a large message in memory counts until it is over",
        "actors/endings.py",
        "            self.memory_bytes -= message.large_bytes\n",
        "            pass\n",
        BYTES,
    ),
    Planted(
        "copies of those who have credit are not dropped for want of memory",
        "actors/passing.py",
        "                    if copy.waits and not receiver.credit:\n",
        "                    if copy.waits:\n",
        BYTES,
    ),
    Planted(
        "a finished delivery gives its credit back",
        "actors/endings.py",
        "            ended[endpoint] = ended.get(endpoint, 0) + 1\n            count += 1\n",
        "            count += 1\n",
        RECEIVERS,
    ),
    Planted(
        "a finished delivery of a run gives its credit back",
        "actors/endings.py",
        "            self.credit(page.endpoint, number)\n",
        "",
        RECEIVERS,
    ),
    Planted(
        "a lost delivery gives its credit back",
        "actors/endings.py",
        "        if endpoint is not None and delivery.returns_credit:\n",
        "        if False and endpoint is not None:\n",
        RECEIVERS,
    ),
    Planted(
        "an endpoint is sent no more than its credit",
        "actors/receivers.py",
        "        endpoint.credit -= 1\n        self.credit -= 1\n        if endpoint.credit == 0:\n            del ready[endpoint]\n",
        "        if endpoint.credit == 0:\n            del ready[endpoint]\n",
        RECEIVERS,
    ),
    Planted(
        "every attempt is counted",
        "actors/dispatch.py",
        "        delivery.attempts += 1\n",
        "        delivery.attempts = max(delivery.attempts, 1)\n",
        LADDER,
    ),
    Planted(
        "a deadline passes at its time, not after it",
        "actors/leases.py",
        "        while self._heap and self._heap[0][0] <= now_ms:\n",
        "        while self._heap and self._heap[0][0] < now_ms:\n",
        LADDER,
    ),
    Planted(
        "equals go in the order in which they were accepted",
        "actors/queue.py",
        "            heappush(self.early, (delivery.rank, id(delivery), delivery))\n\n    def head",
        "            heappush(self.early, (-delivery.rank, id(delivery), delivery))\n\n    def head",
        f"{MESSAGES} {WORK} {RECEIVERS}",
    ),
    Planted(
        "priority 0 goes first, none last",
        "storage/keys.py",
        "    return ((PRIORITY_NONE if priority is None else priority) << POSITION_BITS) | position\n",
        "    return ((0 if priority is None else priority) << POSITION_BITS) | position\n",
        MESSAGES,
    ),
    Planted(
        "a message that comes back keeps its priority and goes behind its equals",
        "actors/retry.py",
        "        rank = delivery.rank if keeps else rank_of(header.priority, self.take_number())\n        delivery.status",
        "        rank = delivery.rank\n        delivery.status",
        LADDER,
    ),
    Planted(
        "only the holder may report",
        "actors/subscribing.py",
        '        if delivery.page is not None:\n            return "not_yours"\n',
        "        if delivery.page is not None:\n            return None\n",
        LADDER,
    ),
    Planted(
        "a failed delivery is retried while attempts are left",
        "actors/retry.py",
        "        if delivery.attempts >= settings.max_attempts or (\n",
        "        if delivery.attempts > settings.max_attempts or (\n",
        LADDER,
    ),
    Planted(
        "retries wait for their backoff, which doubles",
        "asterism/settings.py",
        "        return min(self.most_ms, self.least_ms << min(failures - 1, 62))\n",
        "        return min(self.most_ms, self.least_ms << min(failures, 62))\n",
        f"tests/unit/test_settings.py {LADDER}",
    ),
    Planted(
        "a parked message is renewed in the order of failing",
        "actors/workqueue.py",
        '        for key, _ in list(self.rows.scan(*self.keys.range_of("p"))):\n            self.renew_at(',
        '        for key, _ in reversed(list(self.rows.scan(*self.keys.range_of("p")))):\n            self.renew_at(',
        f"{WORK} {LADDER}",
    ),
    Planted(
        "a dead letter is kept until its topic has it",
        "actors/retry.py",
        "        elif code in _PASSING:\n",
        "        elif code in _PASSING and self.rows.delete(self.keys.outbox(number)) is None:\n            return\n        elif code in _PASSING:\n",
        LADDER,
    ),
    Planted(
        "a message with max_receivers has no more deliveries than that",
        "actors/dispatch.py",
        "        if places.taken() >= wanted:\n",
        "        if places.taken() > wanted:\n",
        f"{MESSAGES} {RECEIVERS}",
    ),
    Planted(
        "an online message is for those who are online",
        "actors/publishing.py",
        "            if receiver.endpoints and number != WORK:\n",
        "            if number != WORK:\n",
        MESSAGES,
    ),
    Planted(
        "a payload of exactly max_payload is taken",
        "actors/publishing.py",
        "        if len(payload) > settings.max_payload:\n",
        "        if len(payload) >= settings.max_payload:\n",
        MESSAGES,
    ),
    Planted(
        "what was published twice is stored once",
        "actors/publishing.py",
        "            known = self.producers.answered(producer, first, len(command.messages))\n",
        "            known = []\n",
        RECEIPTS,
    ),
    Planted(
        "a producer's numbers have no gap",
        "actors/producers.py",
        "        if first > producer.high + 1:\n",
        "        if first > producer.high + 1_000_000:\n",
        RECEIPTS,
    ),
    Planted(
        "a message is over when it expires",
        "actors/topic.py",
        "            if record.expires_ms > now_ms or len(expired) >= EXPIRE_ROWS_MAX:\n",
        "            if record.expires_ms > now_ms - 1_000 or len(expired) >= EXPIRE_ROWS_MAX:\n",
        MESSAGES,
    ),
    Planted(
        "drop_old drops the oldest",
        "actors/publishing.py",
        "            self.drop(min(waiting), now_ms)\n",
        "            self.drop(max(waiting), now_ms)\n",
        TOPICS,
    ),
    Planted(
        "no more deliveries are out than the topic's concurrency",
        "actors/dispatch.py",
        "        return limit is not None and self.pages.out >= limit\n",
        "        return limit is not None and self.pages.out > limit\n",
        TOPICS,
    ),
    Planted(
        "a blocking topic sends nothing before the last message is resolved",
        "actors/dispatch.py",
        "            self.send_current(now_ms)\n            if self.current is not None:\n                return\n",
        "            if not self.send_current(now_ms):\n                return\n            self.current = None\n",
        TOPICS,
    ),
    Planted(
        "a unique topic refuses a payload that it holds",
        "actors/publishing.py",
        "        if settings.unique:\n            self.check_unique(payload, None)\n",
        "",
        TOPICS,
    ),
    Planted(
        "an ordering key is free again when its message is over",
        "actors/queue.py",
        "        if self._held.get(key, sequence) != sequence:\n            return []\n",
        "        return []\n",
        f"{MESSAGES} {RECEIVERS}",
    ),
    Planted(
        "what comes later waits behind a run",
        "actors/pool.py",
        "            return\n        self._make_way(delivery, lane)\n",
        "            return\n",
        MESSAGES,
    ),
    Planted(
        "a durable group keeps what an absent member wants",
        "actors/subscribing.py",
        "        kept = receiver.interests if joins else ()\n",
        "        kept = ()\n",
        RECEIVERS,
    ),
    Planted(
        "what a receiver has not done is never taken for done",
        "actors/log.py",
        "            if sequence < floor and not delivery.placed:\n                floor = sequence\n",
        "            if sequence < floor and not delivery.placed:\n                floor = sequence + 1\n",
        RECEIVERS,
    ),
    Planted(
        "what a receiver did out of order is remembered",
        "actors/log.py",
        '                rows.put(keys.done(number, sequence), b"")\n',
        "                pass\n",
        RECEIVERS,
    ),
    Planted(
        "a receiver that does not read is dropped its oldest online copies, and only those",
        "actors/dispatch.py",
        "            kept[0].skip(dropped)\n",
        "            kept[0].skip(len(kept[0]))\n",
        RECEIVERS,
    ),
    Planted(
        "a lost connection puts all it held back at once",
        "actors/subscribing.py",
        "        for delivery in sorted(held, key=rank_of_delivery):\n            self.unreachable(delivery, now_ms)\n        if not receiver.endpoints:\n",
        "        if not receiver.endpoints:\n",
        LADDER,
    ),
    Planted(
        "what is ordered from the work queue outlives a restart",
        "actors/recovery.py",
        "        if record.receiver == WORK:\n",
        "        if record.receiver == -1:\n",
        WORK,
    ),
    Planted(
        "attempts are counted through a restart",
        "actors/leases.py",
        "                self._rows.put(self._keys.page(page.number), self._row(page))\n",
        "",
        LADDER,
    ),
    Planted(
        "`clear` wakes every waiting order",
        "actors/topic.py",
        "        for order in list(self.receivers.work.orders.values()):\n",
        "        for order in list(self.receivers.work.orders.values())[:1]:\n",
        WORK,
    ),
    Planted(
        "`**` stands for at least one segment",
        "router/interest.py",
        "        looping.append(many)\n",
        "        looping.append(many)\n        found.update(*[c.receivers or () for c in (many.literals or {}).values()])\n",
        INTEREST,
    ),
    Planted(
        "a store that lost synced writes is refused",
        "storage/store.py",
        "            self._mark.advance(sequence)\n",
        "            pass\n",
        DAMAGE,
    ),
    Planted(
        "one turn's writes are there together or not at all",
        "storage/store.py",
        "        put, delete = batch.put, batch.delete\n",
        "        put, delete = self._rocksdb.put, batch.delete\n",
        STORE,
    ),
)
