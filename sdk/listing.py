"""Lists of the broker, which has them by the page: going through one gives all of it. Pure."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any, Generic, Self, TypeVar

_T = TypeVar("_T")
Asked = Coroutine[Any, Any, list[_T] | None]
"""A page, ``None`` behind the last."""


class Listing(Generic[_T]):
    """The rows of a list: ``async for`` has them page by page, ``await`` as one list of all.

    It asks the broker as it goes, so what changes meanwhile may be in it or not.
    """

    def __init__(self, what: str, next_page: Callable[[], Asked[_T]]) -> None:
        self._what = what
        self._next_page = next_page  # None behind the last page
        self._rows: deque[_T] = deque()

    def __aiter__(self) -> AsyncIterator[_T]:
        return self

    async def __anext__(self) -> _T:
        while not self._rows:
            page = await self._next_page()
            if page is None:
                raise StopAsyncIteration
            self._rows.extend(page)
        return self._rows.popleft()

    def __await__(self) -> Generator[Any, None, list[_T]]:
        return self._all().__await__()

    async def _all(self) -> list[_T]:
        return [row async for row in self]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._what}>"


class BlockingListing(Iterator[_T]):
    """The rows of a list, page by page; ``list`` makes one of all."""

    def __init__(
        self,
        listing: Listing[_T],
        run: Callable[[Asked[_T]], list[_T] | None],
    ) -> None:
        self._listing = listing
        self._run = run

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _T:
        rows = self._listing._rows
        while not rows:
            page = self._run(self._listing._next_page())
            if page is None:
                raise StopIteration
            rows.extend(page)
        return rows.popleft()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._listing._what}>"


class Pages(Generic[_T]):
    """Pages of a list, each behind the place of the last row of the one before."""

    def __init__(
        self,
        ask: Callable[[Any], Awaitable[list[_T]]],
        place: Callable[[_T], Any],
        after: Any,
        most: int,
    ) -> None:
        self._ask = ask
        self._place = place
        self._after = after
        self._most = most
        self._is_over = False

    async def __call__(self) -> list[_T] | None:
        if self._is_over:
            return None
        page = await self._ask(self._after)
        # A page that is not full is the last.
        self._is_over = len(page) < self._most
        if page:
            self._after = self._place(page[-1])
        return page
