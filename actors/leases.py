"""What is out, with whom, until when.

Deliveries that went out together, to one endpoint, on one step of the ladder, are one *page*: they
share a deadline and one row on disk. So the cost of remembering what is out is paid once a batch,
not once a message. A page's row is written at the end of the turn and never changed: an entry that
is finished is recognised at recovery by the state of its message.

A page has one *holder*: a node and its endpoint. When the holder is away (the worker was restarted,
the connection was lost in a way that its client may not know of) its pages stay out, kept for it
until it claims them, is known to be gone, or the grace is over.

I1 A delivery that is out is in exactly one page, and its page has it.
I2 A page is in the heap once for its present deadline; entries for earlier ones are stale.
I3 A page is in ``_absent`` exactly while it is kept for a holder that is away and is not empty;
   then none of its deliveries has an endpoint. Until the grace has begun it has no deadline.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from asterism.actors.delivery import MEMORY_KIND, POOL_KIND, Delivery
from asterism.actors.receivers import Endpoint, Holder, Receiver
from asterism.actors.runs import Run
from asterism.commands import Incoming
from asterism.message import NEVER_MS, Status
from asterism.rows import Rows
from asterism.storage.keys import TopicKeys
from asterism.storage.records import PageRecord, encode_first_page, encode_page


class Page:
    """Deliveries that went out together. As with messages, an instance sets what differs."""

    deadline_ms = 0
    # Or a part of a run: from which sequence on, how many are still out, what they share.
    messages: tuple[Incoming, ...] = ()
    first = 0
    left = 0
    endpoint: Endpoint | None = None
    holder: Holder | None = None  # None: ordered from the work queue
    is_absent = False  # its holder is away, and it is kept for it
    accepted_ms = 0
    expires_ms = 0
    producer: bytes | None = None  # who is told how each of them ended
    told_first = 0  # the producer's number of the first
    subjects: tuple[str, ...] | None = None  # of all of a run; None: of each its own
    extended = False  # its deadline was asked for, and no setting moves it
    renewed_ms = 0  # when its deadline began anew, if it did
    stored = False
    wants_row = False

    def __init__(self, number: int, receiver: Receiver, status: Status, now_ms: int) -> None:
        self.number = number
        self.receiver = receiver
        self.status = status
        self.started_ms = now_ms
        self.deliveries: dict[int, Delivery] = {}


class Pages:
    """All pages of a topic."""

    def __init__(
        self, rows: Rows, keys: TopicKeys, store_receiver: Callable[[Receiver], None]
    ) -> None:
        self._rows = rows
        self._keys = keys
        self._store_receiver = store_receiver  # what a page's row names is found by a restart
        self._heap: list[tuple[int, int, Page]] = []
        self._open: dict[tuple[Receiver, Endpoint | None, int], Page] = {}  # of this command
        self._fresh: list[Page] = []  # of this turn, row not yet written
        self._pages: dict[int, Page] = {}
        self._absent: dict[bytes, dict[int, Page]] = {}  # by the node of their holder
        self.next_number = 1
        self.out = 0  # deliveries out

    def add(
        self, delivery: Delivery, receiver: Receiver, endpoint: Endpoint | None, now_ms: int
    ) -> None:
        """A delivery went out: it joins this command's page of its endpoint."""
        durable = delivery.message.kind != MEMORY_KIND
        page = self.page_for(receiver, endpoint, delivery.status, durable, now_ms)
        page.deliveries[delivery.sequence] = delivery
        delivery.page = page
        self.out += 1

    def add_run(
        self,
        receiver: Receiver,
        endpoint: Endpoint,
        run: Run,
        first: int,
        messages: tuple[Incoming, ...],
        now_ms: int,
    ) -> Page:
        """A part of a run went out: it is a page by itself."""
        page = self._open_page(receiver, Status.SENT, now_ms)
        page.wants_row = True
        page.endpoint = endpoint
        page.holder = (endpoint.node, endpoint.number)
        page.messages = messages
        page.first = first
        page.left = len(messages)
        page.accepted_ms = run.accepted_ms
        page.expires_ms = run.expires_ms
        page.producer = run.producer
        page.told_first = run.number - (run.first - first)
        page.subjects = run.subjects
        receiver.out_of_runs += page.left
        self.out += page.left
        return page

    def page_for(
        self,
        receiver: Receiver,
        endpoint: Endpoint | None,
        status: Status,
        durable: bool,
        now_ms: int,
    ) -> Page:
        """The page that this command fills for an endpoint."""
        key = (receiver, endpoint, status * 2 + durable)
        page = self._open.get(key)
        # A page without an endpoint is one order of the work queue, and those outlive restarts one
        # by one: each has a page of its own.
        if page is None or endpoint is None:
            page = self._open_page(receiver, status, now_ms)
            page.wants_row = durable
            if endpoint is not None:
                page.holder = (endpoint.node, endpoint.number)
            self._open[key] = page
        return page

    def _open_page(self, receiver: Receiver, status: Status, now_ms: int) -> Page:
        page = Page(self.next_number, receiver, status, now_ms)
        self.next_number += 1
        page.deadline_ms = now_ms + receiver.timeout_ms(status)
        heappush(self._heap, (page.deadline_ms, page.number, page))
        self._pages[page.number] = page
        self._fresh.append(page)
        return page

    def restore(self, page: Page) -> None:
        """A page that outlived a restart: of the work queue, or of a holder that may come back."""
        page.stored = page.wants_row = True
        self._pages[page.number] = page
        self.out += len(page.deliveries)
        if page.holder is None:
            heappush(self._heap, (page.deadline_ms, page.number, page))
        else:
            self._keep(page, NEVER_MS)

    # --- holders that are away --------------------------------------------------------------

    def keep(self, page: Page, until_ms: int) -> None:
        """The holder of a page is away: it is kept for it, at most until then."""
        self._keep(page, until_ms)
        heappush(self._heap, (until_ms, page.number, page))

    def _keep(self, page: Page, until_ms: int) -> None:
        assert page.holder is not None
        page.is_absent = page.extended = True
        page.endpoint = None
        page.deadline_ms = until_ms
        self._absent.setdefault(page.holder[0], {})[page.number] = page

    def begin_grace(self, until_ms: int) -> None:
        """Holders can come back from now on: what a restart found is kept until then."""
        for pages in self._absent.values():
            for page in pages.values():
                if page.deadline_ms == NEVER_MS:
                    page.deadline_ms = until_ms
                    heappush(self._heap, (until_ms, page.number, page))

    def absent_nodes(self) -> list[bytes]:
        return list(self._absent)

    def absent_of(self, node: bytes, endpoint: int | None = None) -> list[Delivery]:
        """The deliveries that are kept for a node, or for one endpoint of it."""
        return [
            delivery
            for page in self._absent.get(node, {}).values()
            if endpoint is None or page.holder == (node, endpoint)
            for delivery in page.deliveries.values()
        ]

    # --- what is out no longer --------------------------------------------------------------

    def remove(self, delivery: Delivery) -> None:
        """A delivery is out no longer."""
        page = delivery.page
        assert page is not None
        delivery.page = None
        self.out -= 1
        del page.deliveries[delivery.sequence]
        if not page.deliveries and not page.left:
            self.close(page)

    def close(self, page: Page) -> None:
        """A page is empty: it is forgotten, on disk too."""
        self._pages.pop(page.number, None)
        if page.is_absent:
            self._forget_absent(page)
        if page.stored:
            self._rows.delete(self._keys.page(page.number))

    def _forget_absent(self, page: Page) -> None:
        assert page.holder is not None
        page.is_absent = False
        node = page.holder[0]
        del self._absent[node][page.number]
        if not self._absent[node]:
            del self._absent[node]

    def renew(self, page: Page, now_ms: int) -> None:
        """The deadline of a whole page begins anew. One that was asked for is not shortened.

        Its row stays as it is: after a restart the deadline of a holder is that of the grace.
        """
        assert page.holder is not None and not page.is_absent
        page.renewed_ms = now_ms
        deadline_ms = now_ms + page.receiver.timeout_ms(page.status)
        if page.extended and page.deadline_ms >= deadline_ms:
            return
        page.extended = False
        page.deadline_ms = deadline_ms
        heappush(self._heap, (deadline_ms, page.number, page))

    def extend(self, deliveries: list[Delivery], wanted_ms: int | None, now_ms: int) -> None:
        """Gives deliveries a deadline of their own; with ``None``, that of their step anew."""
        pages: dict[tuple[Receiver, Holder | None, int, int], Page] = {}
        for delivery in deliveries:
            receiver, before = delivery.receiver, delivery.page
            assert receiver is not None and before is not None
            deadline_ms = wanted_ms
            if deadline_ms is None:
                asked_ms = before.deadline_ms if before.extended else 0
                deadline_ms = max(asked_ms, now_ms + receiver.timeout_ms(delivery.status))
            wants_row = delivery.message.kind != MEMORY_KIND
            is_absent = before.is_absent
            self.remove(delivery)
            key = (receiver, before.holder, delivery.status * 2 + wants_row, deadline_ms)
            page = pages.get(key)
            if page is None or before.holder is None:
                page = pages[key] = self._open_page(receiver, delivery.status, now_ms)
                page.extended = wanted_ms is not None or page.deadline_ms != deadline_ms
                page.wants_row = wants_row
                page.holder = before.holder
                page.deadline_ms = deadline_ms
                if is_absent:  # whoever extends it by the receiver's name has it, it seems
                    self._keep(page, deadline_ms)
                heappush(self._heap, (deadline_ms, page.number, page))
            page.deliveries[delivery.sequence] = delivery
            delivery.page = page
            self.out += 1

    def due(self, now_ms: int) -> list[Delivery]:
        """The deliveries whose deadline has passed; they stay out until they are removed."""
        passed: list[Delivery] = []
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, _, page = heappop(self._heap)
            if page.deliveries and page.deadline_ms == deadline_ms:
                passed.extend(page.deliveries.values())
        return passed

    def next_due_ms(self) -> int | None:
        while self._heap:
            deadline_ms, _, page = self._heap[0]
            if (page.deliveries or page.left) and page.deadline_ms == deadline_ms:
                return deadline_ms
            heappop(self._heap)
        return None

    def settings_changed(self) -> None:
        """Timeouts changed: they hold for what is out already, unless it asked for its own."""
        for page in self._pages.values():
            if not page.extended:
                since_ms = max(page.started_ms, page.renewed_ms)
                page.deadline_ms = since_ms + page.receiver.timeout_ms(page.status)
        self._heap = [(page.deadline_ms, page.number, page) for page in self._pages.values()]
        heapify(self._heap)

    def close_open(self) -> None:
        """The command is over: what goes out next begins new pages."""
        self._open.clear()

    def write_rows(self) -> None:
        """Writes the turn's new pages; those that are empty again never reach the disk."""
        for page in self._fresh:
            if (page.deliveries or page.left) and page.wants_row:
                page.stored = True
                if not page.receiver.stored:
                    self._store_receiver(page.receiver)
                self._rows.put(self._keys.page(page.number), self._row(page))
        self._fresh.clear()

    def _row(self, page: Page) -> bytes:
        number, times = page.receiver.number, (page.started_ms, page.deadline_ms)
        if page.left:
            # Those of a run that are finished already are recognised by their rows: they are gone.
            count, holder = len(page.messages), page.holder
            assert holder is not None
            return encode_first_page(page.status, number, *times, page.first, count, holder)
        entries = [(held.sequence, held.attempts) for held in page.deliveries.values()]
        return encode_page(PageRecord(page.status, number, *times, entries, page.holder))

    def rewrite(self) -> None:
        """At the end of the turn every row names only what is still out."""
        self._fresh.extend(page for page in self._pages.values() if page.stored)

    def counts(self, kinds: tuple[int, ...]) -> tuple[int, int]:
        """How many deliveries of these kinds are sent, and how many received."""
        counted = {Status.SENT: 0, Status.RECEIVED: 0}
        for page in self._pages.values():
            counted[page.status] += page.left if POOL_KIND in kinds else 0
            for delivery in page.deliveries.values():
                counted[page.status] += delivery.message.kind in kinds
        return counted[Status.SENT], counted[Status.RECEIVED]

    def messages_out(self) -> int:
        """How many messages are out, each counted once however many have it."""
        left, sequences = 0, set[int]()
        for page in self._pages.values():
            left += page.left
            sequences.update(page.deliveries)
        return left + len(sequences)

    def all(self) -> Iterable[Page]:
        return self._pages.values()

    def forget_all(self) -> None:
        """The topic was cleared: its rows are gone already."""
        for page in self._pages.values():
            for delivery in page.deliveries.values():
                delivery.page = None
            page.left = 0
        self._heap.clear()
        self._open.clear()
        self._fresh.clear()
        self._pages.clear()
        self._absent.clear()
        self.out = 0
