"""What is out, with whom, until when.

Deliveries that went out together, to one endpoint, on one step of the ladder, are one *page*: they
share a deadline and one row on disk. So the cost of remembering what is out is paid once a batch,
not once a message. A page's row is written at the end of the turn and never changed: an entry that
is finished is recognised at recovery by the state of its message.

I1 A delivery that is out is in exactly one page, and its page has it.
I2 A page is in the heap once for its present deadline; entries for earlier ones are stale.
"""

from heapq import heapify, heappop, heappush

from asterism.actors.delivery import MEMORY_KIND, Delivery
from asterism.actors.receivers import Endpoint, Receiver
from asterism.actors.runs import Run
from asterism.commands import Incoming
from asterism.message import Status
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
    accepted_ms = 0
    expires_ms = 0
    producer: bytes | None = None  # who is told how each of them ended
    told_first = 0  # the producer's number of the first
    extended = False  # its deadline was asked for, and no setting moves it
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

    def __init__(self, rows: Rows, keys: TopicKeys) -> None:
        self._rows = rows
        self._keys = keys
        self._heap: list[tuple[int, int, Page]] = []
        self._open: dict[tuple[Receiver, Endpoint | None, int], Page] = {}  # of this command
        self._fresh: list[Page] = []  # of this turn, row not yet written
        self._pages: dict[int, Page] = {}
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
        page.messages = messages
        page.first = first
        page.left = len(messages)
        page.accepted_ms = run.accepted_ms
        page.expires_ms = run.expires_ms
        page.producer = run.producer
        page.told_first = run.number - (run.first - first)
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
        """A page of the work queue that outlived a restart."""
        page.stored = page.wants_row = True
        self._pages[page.number] = page
        heappush(self._heap, (page.deadline_ms, page.number, page))
        self.out += len(page.deliveries)

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
        if page.stored:
            self._rows.delete(self._keys.page(page.number))

    def extend(self, deliveries: list[Delivery], deadline_ms: int, now_ms: int) -> None:
        """Gives these deliveries a deadline of their own."""
        pages: dict[tuple[int, int], Page] = {}
        for delivery in deliveries:
            receiver = delivery.receiver
            assert receiver is not None
            wants_row = delivery.message.kind != MEMORY_KIND
            self.remove(delivery)
            key = (receiver.number, delivery.status * 2 + wants_row)
            page = pages.get(key)
            if page is None or delivery.endpoint is None:
                page = pages[key] = self._open_page(receiver, delivery.status, now_ms)
                page.extended = True
                page.wants_row = wants_row
                page.deadline_ms = deadline_ms
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
                page.deadline_ms = page.started_ms + page.receiver.timeout_ms(page.status)
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
                self._rows.put(self._keys.page(page.number), self._row(page))
        self._fresh.clear()

    def _row(self, page: Page) -> bytes:
        number, times = page.receiver.number, (page.started_ms, page.deadline_ms)
        if page.left:
            # Those of a run that are finished already are recognised by their rows: they are gone.
            count = len(page.messages)
            return encode_first_page(page.status, number, *times, page.first, count)
        entries = [(held.sequence, held.attempts) for held in page.deliveries.values()]
        return encode_page(PageRecord(page.status, number, *times, entries))

    def rewrite(self) -> None:
        """At the end of the turn every row names only what is still out."""
        self._fresh.extend(page for page in self._pages.values() if page.stored)

    def counts(self, kinds: tuple[int, ...]) -> tuple[int, int]:
        """How many deliveries of these kinds are sent, and how many received."""
        counted = {Status.SENT: 0, Status.RECEIVED: 0}
        for page in self._pages.values():
            for delivery in page.deliveries.values():
                counted[page.status] += delivery.message.kind in kinds
        return counted[Status.SENT], counted[Status.RECEIVED]

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
        self.out = 0
